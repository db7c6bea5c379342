/* A norm of `count` values together: what their deviations are multiplied by, over 2^16, and what is
   added, over 2^12, by channel. */
typedef struct {
    const int32_t *multipliers, *shifts;
    int32_t count;
    int fraction; /* bits of a variance behind the point */
    int64_t epsilon; /* in squared steps of what is read, times the square of `count`, with them */
    int64_t start;
} Norm;

/* The sums of values and of their squares; then what gives them deviation 1, in 2^-16. */
typedef struct {
    int32_t sum;
    int64_t squares;
    int32_t factor;
    int shift;
} Moments;

static void count_value(Moments *moments, int value)
{
    moments->sum += value;
    moments->squares += value * value;
}

/* The whole part of the square root of a number below 2^62. */
static uint32_t root_of(uint64_t number)
{
    uint64_t root = 0;
    for (uint64_t bit = UINT64_C(1) << 60; bit > 0; bit >>= 2)
        if (number >= root + bit) {
            number -= root + bit;
            root = (root >> 1) + bit;
        } else {
            root >>= 1;
        }
    return (uint32_t)root;
}

static void finish_moments(const Norm *norm, Moments *moments)
{
    const int64_t square = (int64_t)moments->sum * moments->sum;
    uint64_t variance = (uint64_t)(norm->count * moments->squares - square) << norm->fraction;
    variance += (uint64_t)norm->epsilon;
    moments->shift = 44 - norm->fraction / 2;
    for (; variance < UINT64_C(1) << 60; variance <<= 2)
        --moments->shift;
    moments->factor = (int32_t)((UINT64_C(1) << 60) / root_of(variance));
}

static int8_t normed(const Norm *norm, const Moments *moments, int channel, int value)
{
    const Range range = {-128, 127};
    const int32_t away = norm->count * value - moments->sum;
    const int64_t half = INT64_C(1) << (moments->shift - 1);
    const int64_t unit = ((int64_t)away * moments->factor + half) >> moments->shift;
    const int64_t shift = (int64_t)norm->shifts[channel] * (1 << 20);
    return limited(range, scaled(unit * norm->multipliers[channel] + shift + norm->start));
}
