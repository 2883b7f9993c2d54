package dev.chagres.bindings;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** The doctor over NVIDIA's own libraries; what it says of the driver depends on the machine and is left open. */
@VendorTest
class VendorDoctorTest {

    private static String output(List<String> options) {
        return ForkedJvm.run(options, Doctor.class).output();
    }

    private static String row(String output, VendorLibrary library) {
        return output.lines()
                .filter(line -> line.startsWith(library.title() + "  "))
                .findFirst()
                .orElseThrow(() -> new AssertionError("no row for " + library + " in\n" + output));
    }

    @Test
    void thePinnedVersionsAreReadBack() {
        String output = output(VendorFolder.options());
        List<String> versions = List.of("13.0.0", "13.0.0", "13.1.0", "9.19.0", "2.28.9", "2.20.2");
        for (VendorLibrary library : VendorLibrary.values()) {
            String[] words = row(output, library)
                    .substring(library.title().length())
                    .strip()
                    .split(" +", 3);
            assertEquals("ok", words[0], output);
            assertEquals(versions.get(library.ordinal()), words[1], output);
        }
        assertTrue(
                output.contains(
                        VendorFolder.folder().resolve("nvidia/cu13/include").toString()),
                output);
    }

    @Test
    void aCudnnWithoutOneOfItsPartsIsRefused(@TempDir Path farm) throws IOException {
        Path real = VendorFolder.folder().resolve("nvidia/cudnn/lib");
        for (String part : VendorLibrary.CUDNN.parts()) {
            if (!part.equals("libcudnn_adv.so.9")) {
                Files.createSymbolicLink(farm.resolve(part), real.resolve(part));
            }
        }
        try {
            List<String> options = new ArrayList<>(VendorFolder.options());
            options.add("-D" + VendorLibrary.CUDNN.property() + "=" + farm);
            ForkedJvm.Result result = ForkedJvm.run(options, Doctor.class).expectExit(1);
            assertTrue(
                    result.output()
                            .contains(
                                    "-Dchagres.cudnn.path " + farm + ": has libcudnn.so.9 but lacks libcudnn_adv.so.9"),
                    result.output());
        } finally {
            try (Stream<Path> links = Files.list(farm)) {
                for (Path link : links.toList()) {
                    Files.delete(link);
                }
            }
        }
    }
}
