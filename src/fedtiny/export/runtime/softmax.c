static void soften(const float *from, int from_step, float *to, int to_step, int count)
{
    float most = from[0], sum = 0.0f;
    for (int i = 1; i < count; ++i)
        most = from[i * from_step] > most ? from[i * from_step] : most;
    for (int i = 0; i < count; ++i) {
        to[i * to_step] = expf(from[i * from_step] - most);
        sum += to[i * to_step];
    }
    for (int i = 0; i < count; ++i)
        to[i * to_step] /= sum;
}

/* Along channels (0), rows (1) or columns (2). */
static void softmax(const Tensor *in, const Tensor *out, int axis)
{
    const int sides[3] = {in->channels, in->rows, in->columns};
    const int from_steps[3] = {in->plane, in->pitch, 1}, to_steps[3] = {out->plane, out->pitch, 1};
    const int one = (axis + 1) % 3, other = (axis + 2) % 3;
    for (int i = 0; i < sides[one]; ++i)
        for (int j = 0; j < sides[other]; ++j)
            soften(row_of(in, 0, 0) + i * from_steps[one] + j * from_steps[other], from_steps[axis],
                   row_of(out, 0, 0) + i * to_steps[one] + j * to_steps[other], to_steps[axis],
                   sides[axis]);
}
