/* The sum of how far the pixels of some channels are from `mean`, or of the squares of that. */
static float sum_around(const Tensor *in, int first, int channels, float mean, int squared)
{
    float sum = 0.0f;
    for (int channel = first; channel < first + channels; ++channel) {
        float plane = 0.0f;
        for (int row = 0; row < in->rows; ++row) {
            const float *from = row_of(in, channel, row);
            float line = 0.0f;
            for (int column = 0; column < in->columns; ++column) {
                const float away = from[column] - mean;
                line += squared ? away * away : away;
            }
            plane += line;
        }
        sum += plane;
    }
    return sum;
}

static void group_norm(const float *scales, const float *shifts, float epsilon, const Tensor *in,
                       const Tensor *out, int groups)
{
    const int channels = in->channels / groups;
    const float count = (float)(channels * in->rows * in->columns);
    for (int first = 0; first < in->channels; first += channels) {
        const float mean = sum_around(in, first, channels, 0.0f, 0) / count;
        const float variance = sum_around(in, first, channels, mean, 1) / count;
        const float factor = 1.0f / sqrtf(variance + epsilon);
        for (int channel = first; channel < first + channels; ++channel)
            for (int row = 0; row < in->rows; ++row) {
                const float *from = row_of(in, channel, row);
                float *to = row_of(out, channel, row);
                for (int column = 0; column < in->columns; ++column)
                    to[column] = (from[column] - mean) * factor * scales[channel] + shifts[channel];
            }
    }
}
