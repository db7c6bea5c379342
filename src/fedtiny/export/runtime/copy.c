/* A block of pixels from and to places that lie so many floats behind the first pixels. */
static void copy(const Tensor *in, int from, const Tensor *out, int to, int channels, int rows,
                 int columns)
{
    for (int channel = 0; channel < channels; ++channel)
        for (int row = 0; row < rows; ++row)
            memcpy(row_of(out, channel, row) + to, row_of(in, channel, row) + from,
                   (size_t)columns * sizeof(float));
}
