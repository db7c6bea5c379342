$card
#ifndef FEDTINY_MODEL_H
#define FEDTINY_MODEL_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MODEL_CHANNELS $channels
#define MODEL_HEIGHT $height
#define MODEL_WIDTH $width
#define MODEL_CLASSES $classes
#define MODEL_TABLE_BYTES $table_bytes /* constant tables, in flash */
#define MODEL_RAM_BYTES $ram_bytes /* static buffers; there is no malloc */

extern const char *const model_class_names[MODEL_CLASSES];

$functions
#ifdef MODEL_PROFILE
#define MODEL_STEPS $steps

extern const char *const model_step_names[MODEL_STEPS];

/* The ticks of each step in the last run. */
extern uint32_t model_profile[MODEL_STEPS];

/* A counter that counts up, which you define: cycles, or microseconds. */
uint32_t model_ticks(void);
#endif

#ifdef __cplusplus
}
#endif

#endif
