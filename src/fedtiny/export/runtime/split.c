/* For a convolution with a stride: every `down`-th row and `right`-th column, from each start, is a
   plane of its own, so that what a tap reads lies side by side. */
static void split(const Tensor *in, const Tensor *out, int down, int right, int top, int left)
{
    const int part = out->plane / (down * right);
    for (int channel = 0; channel < in->channels; ++channel)
        for (int row = 0; row < in->rows; ++row) {
            const float *from = row_of(in, channel, row);
            float *to = row_of(out, channel, (row + top) / down) + (row + top) % down * right * part;
            for (int column = 0; column < in->columns; ++column)
                to[(column + left) % right * part + (column + left) / right] = from[column];
        }
}
