package dev.chagres.trainer;

import static org.junit.jupiter.api.Assertions.assertEquals;

import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

@Tag("L0")
class PeakRateTest {
    @Test
    void knowsDevicesByTheNamesThatCudaGives() {
        assertEquals(989.4e12, PeakRate.flopsPerSecond("NVIDIA H200", TrainingRecipe.BF16));
        assertEquals(494.7e12, PeakRate.flopsPerSecond("NVIDIA H100 80GB HBM3", TrainingRecipe.FP32));
        assertEquals(756e12, PeakRate.flopsPerSecond("NVIDIA H100 PCIe", TrainingRecipe.BF16));
        assertEquals(312e12, PeakRate.flopsPerSecond("NVIDIA A100-SXM4-80GB", TrainingRecipe.BF16));
        assertEquals(362e12, PeakRate.flopsPerSecond("NVIDIA L40S", TrainingRecipe.BF16));
        assertEquals(Double.NaN, PeakRate.flopsPerSecond("NVIDIA L40", TrainingRecipe.BF16));
        assertEquals(Double.NaN, PeakRate.flopsPerSecond("CPU", TrainingRecipe.FP32));
    }
}
