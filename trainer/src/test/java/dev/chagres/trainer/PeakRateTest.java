package dev.chagres.trainer;

import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.chagres.DType;
import dev.chagres.recipe.DelayedScaling;
import dev.chagres.trainer.ModelSetup.Precision;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

@Tag("L0")
class PeakRateTest {
    private static final Precision BF16 = new Precision(DType.BFLOAT16, null);
    private static final Precision FP32 = new Precision(DType.FLOAT32, null);
    private static final Precision FP8 = new Precision(DType.BFLOAT16, DelayedScaling.standard());

    @Test
    void knowsDevicesByTheNamesThatCudaGives() {
        assertEquals(989.4e12, PeakRate.flopsPerSecond("NVIDIA H200", BF16));
        assertEquals(1978.8e12, PeakRate.flopsPerSecond("NVIDIA H200", FP8));
        assertEquals(494.7e12, PeakRate.flopsPerSecond("NVIDIA H100 80GB HBM3", FP32));
        assertEquals(756e12, PeakRate.flopsPerSecond("NVIDIA H100 PCIe", BF16));
        assertEquals(312e12, PeakRate.flopsPerSecond("NVIDIA A100-SXM4-80GB", BF16));
        assertEquals(362e12, PeakRate.flopsPerSecond("NVIDIA L40S", BF16));
        assertEquals(Double.NaN, PeakRate.flopsPerSecond("NVIDIA L40", BF16));
        assertEquals(Double.NaN, PeakRate.flopsPerSecond("CPU", FP32));
    }
}
