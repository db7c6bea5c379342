static float sum_of(const Tensor *in, int channel, Span rows, Span columns)
{
    float sum = 0.0f;
    for (int row = rows.begin; row < rows.end; ++row)
        for (int column = columns.begin; column < columns.end; ++column)
            sum += row_of(in, channel, row)[column];
    return sum;
}

static int pixels_in(Span rows, Span columns)
{
    return (rows.end - rows.begin) * (columns.end - columns.begin);
}
