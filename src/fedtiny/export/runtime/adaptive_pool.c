/* Part `number` of an axis that is cut into `parts`; neighbors may overlap. */
static Span cut_of(int number, int parts, int side)
{
    const Span span = {number * side / parts, ((number + 1) * side + parts - 1) / parts};
    return span;
}

static void adaptive_pool(const Tensor *in, const Tensor *out)
{
    for (int channel = 0; channel < out->channels; ++channel)
        for (int row = 0; row < out->rows; ++row) {
            const Span rows = cut_of(row, out->rows, in->rows);
            float *to = row_of(out, channel, row);
            for (int column = 0; column < out->columns; ++column) {
                const Span columns = cut_of(column, out->columns, in->columns);
                to[column] = sum_of(in, channel, rows, columns) / (float)pixels_in(rows, columns);
            }
        }
}
