/* Sums that stay in the few registers of a small core, at any level of optimization. */
#define EACH_1(DO) DO(0)
#define EACH_4(DO) DO(0) DO(1) DO(2) DO(3)
#define EACH_8(DO) EACH_4(DO) DO(4) DO(5) DO(6) DO(7)
#define EACH(WIDTH, DO) EACH_##WIDTH(DO)
#define ADD_PIXELS(WIDTH) EACH_##WIDTH(ADD)
