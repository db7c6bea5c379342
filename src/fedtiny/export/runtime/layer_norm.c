/* One place of every channel; neighboring channels are a step apart. */
static void norm_place(const float *scales, const float *shifts, float epsilon, const float *from,
                       int from_step, float *to, int to_step, int channels)
{
    float sum = 0.0f, squares = 0.0f;
    for (int i = 0; i < channels; ++i)
        sum += from[i * from_step];
    const float mean = sum / (float)channels;
    for (int i = 0; i < channels; ++i) {
        const float away = from[i * from_step] - mean;
        squares += away * away;
    }
    const float factor = 1.0f / sqrtf(squares / (float)channels + epsilon);
    for (int i = 0; i < channels; ++i)
        to[i * to_step] = (from[i * from_step] - mean) * factor * scales[i] + shifts[i];
}

static void layer_norm(const float *scales, const float *shifts, float epsilon, const Tensor *in,
                       const Tensor *out)
{
    for (int row = 0; row < in->rows; ++row)
        for (int column = 0; column < in->columns; ++column)
            norm_place(scales, shifts, epsilon, row_of(in, 0, row) + column, in->plane,
                       row_of(out, 0, row) + column, out->plane, in->channels);
}
