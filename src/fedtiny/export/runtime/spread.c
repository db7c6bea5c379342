/* For a transposed convolution: pixels lie a stride apart, with zeros between them. */
static void spread(const Tensor *in, const Tensor *out, int down, int right)
{
    for (int channel = 0; channel < in->channels; ++channel)
        for (int row = 0; row < in->rows; ++row) {
            const float *from = row_of(in, channel, row);
            float *to = row_of(out, channel, row * down);
            for (int column = 0; column < in->columns; ++column)
                to[column * right] = from[column];
        }
}
