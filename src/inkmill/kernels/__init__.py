"""GPU kernels (Triton) and, in `graph`, CUDA graphs. They import nothing of inkmill but each other.

Each kernel has a reference that it is tested against:

ctc                        torch.nn.functional.ctc_loss
resize                     OpenCV's linear resize, to the last bit (data.pipeline.resize)
compose                    inkmill.synth.compose, the reference composer of synthetic text
warp, blur, shade, finish  the functions of the same names and arguments in data.augment.torch_passes
"""
