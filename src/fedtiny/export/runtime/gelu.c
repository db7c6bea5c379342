static float gelu_of(float value)
{
    return 0.5f * value * (1.0f + erff(value * 0.70710678f));
}

DEFINE_ACTIVATION(gelu, gelu_of)
