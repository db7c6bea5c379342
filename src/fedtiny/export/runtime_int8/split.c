/* For a convolution with a stride: every `down`-th row and `right`-th column, from each start, is a
   plane of its own, so that what a tap reads lies side by side. */
static void split(const Tensor *in, const Tensor *out, int down, int right, int top, int left)
{
    const int part = out->plane / (down * right);
    for (int channel = 0; channel < in->channels; ++channel)
        for (int row = 0; row < in->rows; ++row) {
            const int8_t *from = row_of(in, channel, row), *end = from + in->columns;
            int8_t *to = row_of(out, channel, (row + top) / down) + (row + top) % down * right * part;
            for (int first = left; first < left + right; ++first, ++from) {
                int8_t *at = to + first % right * part + first / right;
                for (const int8_t *pixel = from; pixel < end; pixel += right)
                    *at++ = *pixel;
            }
        }
}
