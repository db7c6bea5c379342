static void scale(const Tensor *in, const Tensor *out, float factor, float offset)
{
    for (int channel = 0; channel < out->channels; ++channel)
        for (int row = 0; row < out->rows; ++row) {
            const float *from = row_of(in, channel, row);
            float *to = row_of(out, channel, row);
            for (int column = 0; column < out->columns; ++column)
                to[column] = factor * from[column] + offset;
        }
}
