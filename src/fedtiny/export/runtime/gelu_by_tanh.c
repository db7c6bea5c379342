static float gelu_by_tanh_of(float value)
{
    const float cubed = value * value * value;
    return 0.5f * value * (1.0f + tanhf(0.79788456f * (value + 0.044715f * cubed)));
}

DEFINE_ACTIVATION(gelu_by_tanh, gelu_by_tanh_of)
