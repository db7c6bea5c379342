static void convolve(const Layer *layer, const Tensor *in, const Tensor *other, const Tensor *out)
{
    Reader reader = read_from_start(layer);
    for (int filter = 0; filter < out->channels; ++filter) {
        list_kept(layer, &reader, in->plane);
        convolve_filter(layer, filter, in, 0, other, out);
    }
}
