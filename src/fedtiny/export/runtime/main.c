/* Classify $samples from the standard input, or from the file that is named, a line each: the class,
   its name, the logits. $layout
   With --values they are floats that are normalized already. */
#include "model.h"

#include <stdio.h>
#include <string.h>

#define SIZE ((size_t)MODEL_CHANNELS * MODEL_HEIGHT * MODEL_WIDTH)

static union {
    $type raw[SIZE];
    float values[SIZE];
} sample;

static void print_result(int class, const float *logits)
{
    printf("%d\t%s", class, model_class_names[class]);
    for (int i = 0; i < MODEL_CLASSES; ++i)
        printf("\t%.9g", (double)logits[i]);
    printf("\n");
    fflush(stdout);
}

static int classify_all(FILE *from, int values)
{
    const size_t size = values ? sizeof sample.values : sizeof sample.raw;
    float logits[MODEL_CLASSES];
    size_t got;
    while ((got = fread(&sample, 1, size, from)) == size)
        print_result(values ? model_run_values(sample.values, logits)
                            : $run(sample.raw, logits), logits);
    if (got > 0)
        fprintf(stderr, "the last sample has %d bytes instead of %d\n", (int)got, (int)size);
    return got > 0;
}

int main(int count, char **words)
{
    const int values = count > 1 && strcmp(words[1], "--values") == 0;
    const char *name = count > 1 + values ? words[1 + values] : NULL;
    FILE *from = stdin;
    if (count > 2 + values || (name && name[0] == '-')) {
        fprintf(stderr, "usage: %s [--values] [FILE]\n", words[0]);
        return 2;
    }
    if (name && (from = fopen(name, "rb")) == NULL) {
        fprintf(stderr, "cannot open %s\n", name);
        return 2;
    }
    fprintf(stderr, "tables: %d bytes of flash; buffers: %d bytes of RAM\n", MODEL_TABLE_BYTES,
            MODEL_RAM_BYTES);
    return classify_all(from, values);
}
