DEFINE_ACTIVATION(hyperbolic_tangent, tanhf)
