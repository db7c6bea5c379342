/* Every pixel as often as the sides are multiples. */
static void upsample(const Tensor *in, const Tensor *out)
{
    const int down = out->rows / in->rows, right = out->columns / in->columns;
    for (int channel = 0; channel < out->channels; ++channel)
        for (int row = 0; row < out->rows; ++row) {
            const float *from = row_of(in, channel, row / down);
            float *to = row_of(out, channel, row);
            for (int column = 0; column < out->columns; ++column)
                to[column] = from[column / right];
        }
}
