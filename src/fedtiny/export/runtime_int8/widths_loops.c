/* Sums that stay in registers; compilers turn the loops into vector instructions. */
#define EACH(WIDTH, DO)                                                                            \
    for (int i = 0; i < WIDTH; ++i) {                                                              \
        DO(i)                                                                                      \
    }
#define ADD_PIXELS(WIDTH) EACH(WIDTH, ADD)
#define KERNEL static void

/* The nearest that a byte holds. */
static int8_t saturated(int32_t value)
{
    return limited((Range){-128, 127}, value);
}
