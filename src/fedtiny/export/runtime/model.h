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

/* Give the class of an image and, in `logits`, a number for each class. The image is MODEL_CHANNELS
   planes of MODEL_HEIGHT rows of MODEL_WIDTH bytes; it is normalised as in training. */
int model_run(const uint8_t *image, float *logits);

/* The same for an image that is normalised already. */
int model_run_values(const float *image, float *logits);
$raw
#ifdef __cplusplus
}
#endif

#endif
