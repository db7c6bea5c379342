/* Classify $samples from the standard input, or from the file that is named, a line each: the class,
   its name, the logits. $layout */
#include "model.h"

#include <stdio.h>

#define SIZE ((size_t)MODEL_CHANNELS * MODEL_HEIGHT * MODEL_WIDTH)

static $type sample[SIZE];

static void print_result(int class, const float *logits)
{
    printf("%d\t%s", class, model_class_names[class]);
    for (int i = 0; i < MODEL_CLASSES; ++i)
        printf("\t%.9g", (double)logits[i]);
    printf("\n");
    fflush(stdout);
}

static int classify_all(FILE *from)
{
    float logits[MODEL_CLASSES];
    size_t got;
    while ((got = fread(sample, 1, sizeof sample, from)) == sizeof sample)
        print_result($run(sample, logits), logits);
    if (got > 0)
        fprintf(stderr, "the last sample has %d bytes instead of %d\n", (int)got,
                (int)sizeof sample);
    return got > 0;
}

int main(int count, char **words)
{
    const char *name = count > 1 ? words[1] : NULL;
    FILE *from = stdin;
    if (count > 2 || (name && name[0] == '-')) {
        fprintf(stderr, "usage: %s [FILE]\n", words[0]);
        return 2;
    }
    if (name && (from = fopen(name, "rb")) == NULL) {
        fprintf(stderr, "cannot open %s\n", name);
        return 2;
    }
    fprintf(stderr, "tables: %d bytes of flash; buffers: %d bytes of RAM\n", MODEL_TABLE_BYTES,
            MODEL_RAM_BYTES);
    return classify_all(from);
}
