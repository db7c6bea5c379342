static void leaky_relu(const Tensor *in, const Tensor *out, float slope)
{
    for (int channel = 0; channel < out->channels; ++channel)
        for (int row = 0; row < out->rows; ++row) {
            const float *from = row_of(in, channel, row);
            float *to = row_of(out, channel, row);
            for (int column = 0; column < out->columns; ++column)
                to[column] = from[column] < 0.0f ? slope * from[column] : from[column];
        }
}
