#define BEGIN(i) sum[i] = bias;
#define ADD(i) sum[i] += weight * from[i];
#define STORE(i) to[i] = sum[i];

static int32_t sums[MOST_SUMS];

/* One filter's plane of sums, rows and the gaps between them; `other`, if there is one, is added and
   may lie where `out` does. */
static void store_plane(const Layer *layer, int filter, int pitch, const Tensor *other,
                        const Tensor *out)
{
    const int32_t multiplier = layer->multipliers[filter];
    const int64_t start = layer->start;
    const Range range = layer->range;
    for (int row = 0; row < out->rows; ++row) {
        const int32_t *from = sums + row * pitch;
        const int8_t *added = other ? row_of(other, filter, row) : NULL;
        int8_t *to = row_of(out, filter, row);
        if (added)
            for (int column = 0; column < out->columns; ++column)
                to[column] = limited(range, scaled((int64_t)from[column] * multiplier +
                                                   (int64_t)(added[column] * 256) * layer->other +
                                                   start));
        else
            for (int column = 0; column < out->columns; ++column)
                to[column] = limited(range, scaled((int64_t)from[column] * multiplier + start));
    }
}
