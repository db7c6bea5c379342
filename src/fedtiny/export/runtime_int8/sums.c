#define BEGIN(i) sum[i] = bias;
#define ADD(i) sum[i] += weight * from[i];
#define STORE(i) to[i] = sum[i];

static int32_t sums[MOST_SUMS];

/* How many of a plane's sums are worked out $wide at a time; no more than $middle are left. */
static int widely(int length)
{
    return length > $middle ? (length - $middle + $wide - 1) / $wide * $wide : 0;
}

/* A row of sums as integers between bounds; `store_full_` where they are all that a byte holds. */
#define DEFINE_STORE(NAME, LIMIT)                                                                  \
    KERNEL NAME##_row(const int32_t *from, int columns, const Layer *layer, int32_t multiplier,    \
                      int8_t *to)                                                                  \
    {                                                                                              \
        const int64_t start = layer->start;                                                        \
        const Range range = layer->range;                                                          \
        (void)range;                                                                               \
        for (const int32_t *end = from + columns; from < end; ++from, ++to)                        \
            *to = LIMIT(range, scaled_sum(*from, multiplier, start));                              \
    }                                                                                              \
                                                                                                   \
    /* The same with a row that is added, which may be the one that is written. */                 \
    KERNEL NAME##_sum(const int32_t *from, int columns, const Layer *layer, int32_t multiplier,    \
                      const int8_t *added, int8_t *to)                                             \
    {                                                                                              \
        const int64_t start = layer->start;                                                        \
        const int32_t other = layer->other;                                                        \
        const Range range = layer->range;                                                          \
        (void)range;                                                                               \
        for (const int32_t *end = from + columns; from < end; ++from, ++to) {                      \
            const int64_t term = (int64_t)(*added++ * 256) * other + start;                        \
            *to = LIMIT(range, scaled((int64_t)*from * multiplier + term));                        \
        }                                                                                          \
    }

#define SATURATED(range, value) saturated(value)

DEFINE_STORE(store, limited)
DEFINE_STORE(store_full, SATURATED)

/* One filter's plane of sums, rows and the gaps between them; `other`, if there is one, is added. */
static void store_plane(const Layer *layer, int filter, int pitch, const Tensor *other,
                        const Tensor *out)
{
    const int32_t multiplier = layer->multipliers[filter];
    const int full = layer->range.least == -128 && layer->range.most == 127;
    for (int row = 0; row < out->rows; ++row) {
        const int32_t *from = sums + row * pitch;
        int8_t *to = row_of(out, filter, row);
        const int8_t *added = other ? row_of(other, filter, row) : NULL;
        if (full && added)
            store_full_sum(from, out->columns, layer, multiplier, added, to);
        else if (full)
            store_full_row(from, out->columns, layer, multiplier, to);
        else if (added)
            store_sum(from, out->columns, layer, multiplier, added, to);
        else
            store_row(from, out->columns, layer, multiplier, to);
    }
}
