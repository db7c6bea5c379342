static void convolve(const Layer *layer, const Tensor *in, const Tensor *other, const Tensor *out,
                     Range range)
{
    Reader reader = read_from_start(layer);
    for (int filter = 0; filter < out->channels; ++filter)
        convolve_filter(layer, &reader, filter, in, 0, other, out, range);
}
