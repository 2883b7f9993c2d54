package dev.chagres.layer;

import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.chagres.Device;
import dev.chagres.attention.AttentionMask;
import dev.chagres.conformance.ChildJvm;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.List;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** A program makes its layers before it opens a device; where the JVM denies native access it is told so, each time. */
@Tag("L0")
class DeniedNativeAccessTest {
    private static final String TOLD =
            "java.lang.IllegalStateException: the JVM denies calls to native libraries: start it with"
                    + " --enable-native-access=ALL-UNNAMED";

    /** Makes a layer, then opens a device, twice. */
    static final class LayerThenDevice {
        public static void main(String[] arguments) {
            for (int i = 0; i < 2; i++) {
                var layer = new DotProductAttention(AttentionConfig.of(2, 8, AttentionMask.none()));
                System.out.println("made " + layer.getClass().getSimpleName());
                try (Device device = Device.open()) {
                    System.out.println("opened " + device);
                } catch (IllegalStateException told) {
                    System.out.println(told);
                }
            }
        }
    }

    @Test
    void theTextIsTheSameWhicheverClassComesFirst() throws IOException, InterruptedException {
        ProcessBuilder builder = ChildJvm.of(List.of("--illegal-native-access=deny"), LayerThenDevice.class);
        builder.command().remove("--enable-native-access=ALL-UNNAMED");
        Process process = builder.redirectErrorStream(true).start();
        String output = new String(process.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
        assertEquals(0, process.waitFor(), output);
        List<String> lines = output.lines()
                .filter(line -> line.startsWith("made") || line.startsWith("java.lang"))
                .toList();
        assertEquals(List.of("made DotProductAttention", TOLD, "made DotProductAttention", TOLD), lines, output);
    }
}
