package dev.chagres.bindings;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

@Tag("L0")
class CudaHeadersTest {

    @TempDir
    private Path root;

    private FakeMachine machine;
    private Path runtime;

    @BeforeEach
    void makeMachine() {
        machine = new FakeMachine(root);
        runtime = machine.folder("site/nvidia/cu13/lib");
    }

    private Path write(String folder, int version) throws IOException {
        Path headers = machine.folder(folder);
        Files.createDirectories(headers.resolve("crt"));
        Files.createFile(headers.resolve("crt/host_defines.h"));
        Files.createFile(headers.resolve("cuda_runtime.h"));
        Files.writeString(headers.resolve("cuda_runtime_api.h"), "#define CUDART_VERSION  " + version + "\n");
        return headers;
    }

    private Path find() {
        return CudaHeaders.find(machine.surroundings(), runtime);
    }

    private String missing() {
        return String.valueOf(
                assertThrows(MissingLibraryException.class, this::find).getMessage());
    }

    @Test
    void propertyThenVariablesThenBesideTheRuntimeThenToolkit() throws IOException {
        Path toolkit = write("usr/local/cuda/include", 13000);
        assertEquals(toolkit, find());
        Path beside = write("site/nvidia/cu13/include", 13000);
        assertEquals(beside, find());
        Path home = write("cuda-home/include", 13010);
        machine.environment.put("CUDA_HOME", root.resolve("cuda-home").toString());
        assertEquals(home, find());
        Path variable = write("by-variable", 13000);
        machine.environment.put("NVTE_CUDA_INCLUDE_DIR", variable.toString());
        assertEquals(variable, find());
        Path property = write("by-property", 13000);
        machine.properties.put(CudaHeaders.PROPERTY, property.toString());
        assertEquals(property, find());
    }

    @Test
    void headersOfAnotherCudaArePassedOver() throws IOException {
        write("site/nvidia/cu13/include", 12080);
        String message = missing();
        assertTrue(message.startsWith("CUDA headers: NOT_FOUND: cuda_runtime.h of CUDA 13\n"), message);
        assertTrue(
                message.contains("beside the CUDA runtime " + root.resolve("site/nvidia/cu13/include")
                        + ": has the headers of CUDA 12, wanted 13"),
                message);
        assertTrue(
                message.endsWith(
                        "to mend it: pip install nvidia-cuda-runtime==13.0.96 nvidia-cuda-crt==13.0.88, or name"
                                + " the folder that has cuda_runtime.h with -Dchagres.cuda.include=DIR"),
                message);
    }

    @Test
    void headersWithoutThoseOfTheCompilerAreNotEnough() throws IOException {
        Path headers = write("site/nvidia/cu13/include", 13000);
        Files.delete(headers.resolve("crt/host_defines.h"));
        assertTrue(missing().contains("has no crt/host_defines.h"));
    }

    @Test
    void aPropertyThatDoesNotServeEndsTheSearch() throws IOException {
        write("site/nvidia/cu13/include", 13000);
        machine.properties.put(CudaHeaders.PROPERTY, root.resolve("absent").toString());
        assertTrue(missing().contains("-Dchagres.cuda.include " + root.resolve("absent") + ": no such folder"));
    }

    @Test
    void aVariableThatDoesNotServeEndsTheSearch() throws IOException {
        write("site/nvidia/cu13/include", 13000);
        Path absent = root.resolve("absent");
        machine.environment.put(CudaHeaders.VARIABLE, absent.toString());
        String message = missing();
        assertTrue(message.contains("tried NVTE_CUDA_INCLUDE_DIR " + absent + ": no such folder"), message);
        assertFalse(message.contains("beside the CUDA runtime"), message);
    }

    @Test
    void aVariableMayNameTheParentFolder() throws IOException {
        Path headers = write("toolkit/include", 13000);
        machine.environment.put(CudaHeaders.VARIABLE, headers.getParent().toString());
        assertEquals(headers, find());
    }
}
