/* Classify $samples, and print a line for each: the class, its name, the logits.
   $layout */
#include "board.h"
#include "model.h"

#include <stdio.h>

static $type sample[(size_t)MODEL_CHANNELS * MODEL_HEIGHT * MODEL_WIDTH];

static void print_result(int class, const float *logits)
{
    char text[32];
    (void)snprintf(text, sizeof text, "%d\t", class);
    board_write(text);
    board_write(model_class_names[class]);
    for (int i = 0; i < MODEL_CLASSES; ++i) {
        (void)snprintf(text, sizeof text, "\t%.9g", (double)logits[i]);
        board_write(text);
    }
    board_write("\n");
}

#ifdef MODEL_PROFILE
uint32_t model_ticks(void)
{
    return board_ticks();
}

static void print_profile(void)
{
    char text[32];
    for (int i = 0; i < MODEL_STEPS; ++i) {
        (void)snprintf(text, sizeof text, "%10lu ", (unsigned long)model_profile[i]);
        board_write(text);
        board_write(model_step_names[i]);
        board_write("\n");
    }
}
#else
static void print_profile(void)
{
}
#endif

int classify_all(void)
{
    static float logits[MODEL_CLASSES];
    size_t got;
    while ((got = board_read(sample, sizeof sample)) == sizeof sample) {
        int class;
        board_before();
        class = $run(sample, logits);
        board_after();
        print_result(class, logits);
        print_profile();
    }
    if (got > 0) {
        board_write("the last sample is cut short\n");
    }
    return got > 0;
}
