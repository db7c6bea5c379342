/* Sums that stay in registers; compilers turn the loops into vector instructions. */
#define EACH(WIDTH, DO)                                                                            \
    for (int i = 0; i < WIDTH; ++i) {                                                              \
        DO(i)                                                                                      \
    }
#define ADD_PIXELS(WIDTH) EACH(WIDTH, ADD)
