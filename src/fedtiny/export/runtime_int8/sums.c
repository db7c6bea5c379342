#define BEGIN(i) sum[i] = bias;
#define ADD(i) sum[i] += weight * from[i];
#define STORE(i) to[i] = sum[i];

static int32_t sums[MOST_SUMS];

/* How many of a plane's sums are worked out $wide at a time; no more than $middle are left. */
static int widely(int length)
{
    return length > $middle ? (length - $middle + $wide - 1) / $wide * $wide : 0;
}

#define SCALED(i) scaled_sum(from[i], multiplier, start)
#define SCALED_WITH(i)                                                                             \
    scaled((int64_t)from[i] * multiplier + ((int64_t)(added[i] * 256) * by + start))
#define PUT(i) to[i] = limited(range, SCALED(i));
#define PUT_FULL(i) to[i] = saturated(SCALED(i));
#define PUT_WITH(i) to[i] = limited(range, SCALED_WITH(i));
#define PUT_FULL_WITH(i) to[i] = saturated(SCALED_WITH(i));

/* Rows of sums as integers between bounds; `_FULL` where they are all that a byte holds. */
#define DEFINE_STORE(NAME, DO)                                                                     \
    KERNEL NAME(const int32_t *from, int pitch, const Layer *layer, int32_t multiplier,            \
                const Tensor *out, int8_t *to)                                                     \
    {                                                                                              \
        const int64_t start = layer->start;                                                        \
        const Range range = layer->range;                                                          \
        const int columns = out->columns, gap = pitch - columns, skip = out->pitch - columns;      \
        (void)range;                                                                               \
        for (int row = out->rows; row > 0; --row, from += gap, to += skip) {                       \
            int left = columns;                                                                    \
            for (; left >= $stored; left -= $stored, from += $stored, to += $stored) {                                    \
                EACH($stored, DO)                                                                        \
            }                                                                                      \
            for (; left > 0; --left, ++from, ++to) {                                               \
                EACH(1, DO)                                                                        \
            }                                                                                      \
        }                                                                                          \
    }

/* The same with rows that are added, which may be those that are written. */
#define DEFINE_STORE_WITH(NAME, DO)                                                                \
    KERNEL NAME(const int32_t *from, int pitch, const Layer *layer, int32_t multiplier,            \
                const Tensor *other, const int8_t *added, const Tensor *out, int8_t *to)           \
    {                                                                                              \
        const int64_t start = layer->start;                                                        \
        const int32_t by = layer->other;                                                           \
        const Range range = layer->range;                                                          \
        const int columns = out->columns, gap = pitch - columns, skip = out->pitch - columns;      \
        const int skip_added = other->pitch - columns;                                             \
        (void)range;                                                                               \
        for (int row = out->rows; row > 0; --row, from += gap, added += skip_added, to += skip) {  \
            int left = columns;                                                                    \
            for (; left >= $stored; left -= $stored, from += $stored, added += $stored, to += $stored) {                  \
                EACH($stored, DO)                                                                        \
            }                                                                                      \
            for (; left > 0; --left, ++from, ++added, ++to) {                                      \
                EACH(1, DO)                                                                        \
            }                                                                                      \
        }                                                                                          \
    }

DEFINE_STORE(store, PUT)
DEFINE_STORE(store_full, PUT_FULL)
DEFINE_STORE_WITH(store_with, PUT_WITH)
DEFINE_STORE_WITH(store_full_with, PUT_FULL_WITH)

/* One filter's plane of sums, rows and the gaps between them; `other`, if there is one, is added. */
static void store_plane(const Layer *layer, int filter, int pitch, const Tensor *other,
                        const Tensor *out)
{
    const int32_t multiplier = layer->multipliers[filter];
    const int full = layer->range.least == -128 && layer->range.most == 127;
    int8_t *to = row_of(out, filter, 0);
    const int8_t *added = other ? row_of(other, filter, 0) : NULL;
    if (full && added)
        store_full_with(sums, pitch, layer, multiplier, other, added, out, to);
    else if (full)
        store_full(sums, pitch, layer, multiplier, out, to);
    else if (added)
        store_with(sums, pitch, layer, multiplier, other, added, out, to);
    else
        store(sums, pitch, layer, multiplier, out, to);
}
