package dev.chagres.bindings;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.bindings.Doctor.Report;
import java.nio.file.Path;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** The doctor over a machine that has none of NVIDIA's libraries: one line brings all of them. */
@Tag("L0")
class DoctorInstallLineTest {
    @TempDir
    private Path root;

    private FakeMachine machine;

    @BeforeEach
    void makeMachine() {
        machine = new FakeMachine(root);
        machine.properties.put("chagres.native.path", ForkedJvm.nativeFolder().toString());
        machine.properties.put("chagres.cache", root.resolve("cache").toString());
    }

    private Report report(String provider, Driver driver) {
        machine.properties.put(Provider.PROPERTY, provider);
        return Doctor.report(machine.surroundings(), () -> driver, () -> {});
    }

    private static final String ALL_PACKAGES =
            "pip install nvidia-cuda-runtime==13.0.96 nvidia-cuda-nvrtc==13.0.88 nvidia-cublas==13.1.0.3"
                    + " nvidia-cudnn-cu13==9.19.0.56 nvidia-nccl-cu13==2.28.9 transformer_engine_cu13==2.20.2"
                    + " nvidia-cuda-crt==13.0.88";

    @Test
    void oneLineInstallsAllThatIsMissing() {
        Report report = report("cuda", new Driver(8, 13000, "NVIDIA driver for CUDA 13.0, 8 GPU(s)"));
        assertEquals(ALL_PACKAGES, report.installLine());
        assertTrue(
                report.text()
                        .contains(
                                "\n\nTo mend CUDA runtime, NVRTC, cuBLAS, cuDNN, NCCL, Transformer Engine, CUDA headers:\n  "
                                        + report.installLine() + "\n\nThe provider does not work"),
                report.text());
        assertFalse(report.text().contains("to mend it: "), report.text());
    }

    @Test
    void whatPipCannotMendKeepsItsOwnLine() {
        machine.properties.put("chagres.cudnn.path", root.toString());
        Report report = report("cuda", new Driver(8, 13000, "NVIDIA driver for CUDA 13.0, 8 GPU(s)"));
        assertEquals(1, report.text().split("to mend it: ", -1).length - 1, report.text());
        assertTrue(
                report.text().contains("To mend CUDA runtime, NVRTC, cuBLAS, NCCL, Transformer Engine"), report.text());
    }

    @Test
    void oneLineInstallsAllThatTheProviderDoesNotNeed() {
        Report report = report("auto", new Driver(0, 0, "no NVIDIA driver: libcuda.so.1: not there"));
        assertTrue(
                report.text()
                        .endsWith("\nNot needed by this provider; to have them:\n"
                                + "  NVIDIA driver: install NVIDIA's driver 580 or newer (nvidia-smi shows the present one)\n"
                                + "  CUDA runtime, NVRTC, cuBLAS, cuDNN, NCCL, Transformer Engine, CUDA headers:\n    "
                                + ALL_PACKAGES + "\n\nThe provider works.\n"),
                report.text());
    }

    @Test
    void onlyWhoWantsAGpuIsToldOfTheCpu() {
        Driver none = new Driver(0, 0, "no NVIDIA driver: libcuda.so.1: not there");
        String remedy = ", or run on the CPU with -Dchagres.provider=reference\n";
        assertTrue(
                report("cuda", none).text().contains(remedy),
                () -> report("cuda", none).text());
        assertFalse(report("reference", none).text().contains("run on the CPU"));
    }

    @Test
    void pipDoesNotMendANamedPlace() {
        machine.properties.put("chagres.cudnn.path", root.toString());
        machine.environment.put("NVTE_CUDA_INCLUDE_DIR", root.toString());
        Report report = report("cuda", new Driver(8, 13000, "NVIDIA driver for CUDA 13.0, 8 GPU(s)"));
        assertEquals(
                ALL_PACKAGES.replace(" nvidia-cudnn-cu13==9.19.0.56", "").replace(" nvidia-cuda-crt==13.0.88", ""),
                report.installLine());
    }
}
