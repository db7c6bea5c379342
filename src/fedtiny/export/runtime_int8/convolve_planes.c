/* Depthwise with a stride: one plane at a time is cut into `parts` and read from there. */
static void convolve_planes(const Layer *layer, const Tensor *in, const Tensor *parts,
                            const Tensor *other, const Tensor *out, int down, int right, int top,
                            int left)
{
    const int filters = out->channels / in->channels;
    Reader reader = read_from_start(layer);
    for (int channel = 0; channel < in->channels; ++channel) {
        Tensor plane = *in;
        plane.channels = 1;
        plane.origin += channel * in->plane;
        split(&plane, parts, down, right, top, left);
        for (int i = 0; i < filters; ++i) {
            list_weights(layer, &reader, parts->plane);
            convolve_filter(layer, channel * filters + i, parts, 0, other, out);
        }
    }
}
