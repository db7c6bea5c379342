/* Axes in another order: how far apart neighbors along the axes of `out` lie in `in`. */
static void permute(const Tensor *in, const Tensor *out, int channel_step, int row_step,
                    int column_step)
{
    for (int channel = 0; channel < out->channels; ++channel)
        for (int row = 0; row < out->rows; ++row) {
            const float *from = row_of(in, 0, 0) + channel * channel_step + row * row_step;
            float *to = row_of(out, channel, row);
            for (int column = 0; column < out->columns; ++column)
                to[column] = from[column * column_step];
        }
}
