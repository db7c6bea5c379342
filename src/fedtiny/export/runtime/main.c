/* Classify raw images from the standard input, a line each: the class, its name, the logits.
   An image is MODEL_CHANNELS planes of MODEL_HEIGHT x MODEL_WIDTH bytes or, with --values, float
   values that are normalised already. */
#include "model.h"

#include <stdio.h>
#include <string.h>

#define PIXELS ((size_t)MODEL_CHANNELS * MODEL_HEIGHT * MODEL_WIDTH)

static union {
    uint8_t bytes[PIXELS];
    float values[PIXELS];
} image;

static void print_result(int class, const float *logits)
{
    printf("%d\t%s", class, model_class_names[class]);
    for (int i = 0; i < MODEL_CLASSES; ++i)
        printf("\t%.9g", (double)logits[i]);
    printf("\n");
    fflush(stdout);
}

int main(int count, char **words)
{
    const int values = count == 2 && strcmp(words[1], "--values") == 0;
    const size_t size = PIXELS * (values ? sizeof(float) : 1);
    float logits[MODEL_CLASSES];
    size_t got;
    if (count > 1 && !values) {
        fprintf(stderr, "usage: %s [--values] < IMAGES\n", words[0]);
        return 2;
    }
    fprintf(stderr, "tables: %d bytes of flash; buffers: %d bytes of RAM\n", MODEL_TABLE_BYTES,
            MODEL_RAM_BYTES);
    while ((got = fread(image.bytes, 1, size, stdin)) == size)
        print_result(values ? model_run_values(image.values, logits)
                            : model_run(image.bytes, logits), logits);
    if (got > 0)
        fprintf(stderr, "the last image has %d bytes instead of %d\n", (int)got, (int)size);
    return got > 0;
}
