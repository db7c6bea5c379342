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

/* A sum as an integer of what the layer gives; `start` is a whole number and a half, times 2^32. */
static int32_t scaled_sum(int32_t sum, int32_t multiplier, int64_t start)
{
    return scaled((int64_t)sum * multiplier + start);
}
