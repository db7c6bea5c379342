/* Powers of e, to minus each number of steps, over 2^15; 2^24 by the step of the result. */
typedef struct {
    const uint16_t *powers;
    int64_t numerator, start;
} Shares;

static void soften(const Shares *shares, const int8_t *from, int from_step, int8_t *to,
                   int to_step, int count)
{
    const Range range = {-128, 127};
    int most = -128;
    int64_t sum = 0, factor;
    for (int i = 0; i < count; ++i)
        most = from[i * from_step] > most ? from[i * from_step] : most;
    for (int i = 0; i < count; ++i)
        sum += shares->powers[most - from[i * from_step]];
    factor = (shares->numerator + sum / 2) / sum;
    for (int i = 0; i < count; ++i) {
        const int64_t share = shares->powers[most - from[i * from_step]] * factor;
        to[i * to_step] = limited(range, (int32_t)((share + shares->start) >> 24));
    }
}

/* Along channels (0), rows (1) or columns (2). */
static void softmax(const Shares *shares, const Tensor *in, const Tensor *out, int axis)
{
    const int sides[3] = {in->channels, in->rows, in->columns};
    const int from_steps[3] = {in->plane, in->pitch, 1}, to_steps[3] = {out->plane, out->pitch, 1};
    const int one = (axis + 1) % 3, other = (axis + 2) % 3;
    for (int i = 0; i < sides[one]; ++i)
        for (int j = 0; j < sides[other]; ++j)
            soften(shares, row_of(in, 0, 0) + i * from_steps[one] + j * from_steps[other],
                   from_steps[axis], row_of(out, 0, 0) + i * to_steps[one] + j * to_steps[other],
                   to_steps[axis], sides[axis]);
}
