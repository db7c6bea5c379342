static float hard_swish_of(float value)
{
    return value * ramp(value);
}

DEFINE_ACTIVATION(hard_swish, hard_swish_of)
