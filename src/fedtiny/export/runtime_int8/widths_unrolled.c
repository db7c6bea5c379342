/* Sums that stay in the few registers of a small core, at any level of optimization. */
#define EACH_1(DO) DO(0)
#define EACH_4(DO) DO(0) DO(1) DO(2) DO(3)
#define EACH_8(DO) EACH_4(DO) DO(4) DO(5) DO(6) DO(7)
#define EACH(WIDTH, DO) EACH_##WIDTH(DO)
#define ADD_PIXELS(WIDTH) EACH_##WIDTH(ADD)

/* Functions of their own keep their numbers in registers. */
#ifdef __GNUC__
#define KERNEL static __attribute__((noinline)) void
#else
#define KERNEL static void
#endif

/* The nearest that a byte holds. */
#if defined(__ARM_FEATURE_SAT) && defined(__GNUC__)
static int8_t saturated(int32_t value)
{
    int32_t held;
    __asm__("ssat %0, #8, %1" : "=r"(held) : "r"(value));
    return (int8_t)held;
}
#else
static int8_t saturated(int32_t value)
{
    return limited((Range){-128, 127}, value);
}
#endif
