/* Each plane with a number of its own. */
static void multiply_planes(const Tensor *in, const Tensor *factors, const Tensor *out)
{
    for (int channel = 0; channel < out->channels; ++channel) {
        const float factor = *row_of(factors, channel, 0);
        for (int row = 0; row < out->rows; ++row) {
            const float *from = row_of(in, channel, row);
            float *to = row_of(out, channel, row);
            for (int column = 0; column < out->columns; ++column)
                to[column] = factor * from[column];
        }
    }
}
