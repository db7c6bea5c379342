/* A sum of two scales: each term has a multiplier over 2^24, `start` the zero points and the half. */
static void add(const Tensor *first, const Tensor *second, const Tensor *out, int32_t by_first,
                int32_t by_second, int64_t start, Range range)
{
    for (int channel = 0; channel < out->channels; ++channel)
        for (int row = 0; row < out->rows; ++row) {
            const int8_t *a = row_of(first, channel, row), *b = row_of(second, channel, row);
            int8_t *to = row_of(out, channel, row);
            for (int column = 0; column < out->columns; ++column)
                to[column] = limited(range, (int32_t)(((int64_t)a[column] * by_first +
                                                       (int64_t)b[column] * by_second + start) >>
                                                      24));
        }
}
