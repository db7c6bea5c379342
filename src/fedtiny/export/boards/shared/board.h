/* What classify.c needs of a board. */
#ifndef BOARD_H
#define BOARD_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Fill `to` from the input; returns the number of bytes, less than `size` at its end. */
size_t board_read(void *to, size_t size);

/* Print text. */
void board_write(const char *text);

/* A counter that counts up, for the profile of a model. */
uint32_t board_ticks(void);

/* Called before and after a sample is classified, to measure it. */
void board_before(void);
void board_after(void);

/* Classify all samples of the input, and print a line for each; returns 0, or 1 if the last one is
   cut short. */
int classify_all(void);

#ifdef __cplusplus
}
#endif

#endif
