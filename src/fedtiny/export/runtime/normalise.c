/* Batch norm with its running statistics: a scale and a shift a channel. */
static void normalise(const float *scales, const float *shifts, const Tensor *in, const Tensor *out,
                      Range range)
{
    for (int channel = 0; channel < in->channels; ++channel)
        for (int row = 0; row < in->rows; ++row) {
            const float *from = row_of(in, channel, row);
            float *to = row_of(out, channel, row);
            for (int column = 0; column < in->columns; ++column)
                to[column] = limited(range, scales[channel] * from[column] + shifts[channel]);
        }
}
