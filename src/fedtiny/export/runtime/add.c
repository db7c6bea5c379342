static void add(const Tensor *first, const Tensor *second, const Tensor *out, Range range)
{
    for (int channel = 0; channel < out->channels; ++channel)
        for (int row = 0; row < out->rows; ++row) {
            const float *a = row_of(first, channel, row), *b = row_of(second, channel, row);
            float *to = row_of(out, channel, row);
            for (int column = 0; column < out->columns; ++column)
                to[column] = limited(range, a[column] + b[column]);
        }
}
