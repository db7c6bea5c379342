/* A function of every pixel; `out` may be `in`. */
#define DEFINE_ACTIVATION(NAME, FUNCTION)                                                          \
    static void NAME(const Tensor *in, const Tensor *out)                                          \
    {                                                                                              \
        for (int channel = 0; channel < out->channels; ++channel)                                  \
            for (int row = 0; row < out->rows; ++row) {                                            \
                const float *from = row_of(in, channel, row);                                      \
                float *to = row_of(out, channel, row);                                             \
                for (int column = 0; column < out->columns; ++column)                              \
                    to[column] = FUNCTION(from[column]);                                           \
            }                                                                                      \
    }
