package dev.chagres.bindings;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.bindings.Provider.Choice;
import java.util.List;
import java.util.function.Supplier;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;

@Tag("L0")
class ProviderTest {

    private static final Supplier<Driver> NEVER_ASKED = () -> {
        throw new AssertionError("the driver must not be asked");
    };

    /** Prints the provider twice. */
    static final class Ask {
        public static void main(String[] arguments) {
            System.out.println("provider=" + Provider.current());
            System.out.println("provider=" + Provider.current());
        }
    }

    /** Asks twice and prints what is thrown. */
    static final class AskBadly {
        public static void main(String[] arguments) {
            for (int i = 0; i < 2; i++) {
                try {
                    System.out.println(Provider.current());
                } catch (IllegalArgumentException refused) {
                    System.out.println(refused.getMessage());
                }
            }
        }
    }

    @ParameterizedTest
    @CsvSource({"cuda,CUDA", "reference,REFERENCE"})
    void anExplicitChoiceAsksNoDriver(String value, Provider expected) {
        assertEquals(new Choice(expected, "-Dchagres.provider=" + value), Provider.choose(value, NEVER_ASKED));
    }

    @Test
    void autoIsCudaWhereADriverSeesAGpu() {
        Choice choice = Provider.choose("auto", () -> new Driver(2, 13000, "NVIDIA driver for CUDA 13.0, 2 GPU(s)"));
        assertEquals(new Choice(Provider.CUDA, "NVIDIA driver for CUDA 13.0, 2 GPU(s)"), choice);
    }

    @Test
    void autoIsTheReferenceWhereNoDriverSeesAGpu() {
        Choice choice = Provider.choose("auto", () -> new Driver(0, 0, "no NVIDIA driver: not found"));
        assertEquals(new Choice(Provider.REFERENCE, "no NVIDIA driver: not found"), choice);
    }

    @ParameterizedTest
    @ValueSource(strings = {"CUDA", "gpu", " cuda", "cpu"})
    void anotherValueIsRefusedWithTheValuesThatAreTaken(String value) {
        IllegalArgumentException refused =
                assertThrows(IllegalArgumentException.class, () -> Provider.choose(value, NEVER_ASKED));
        assertEquals(
                "-Dchagres.provider: expected auto, cuda or reference, got \"" + value + "\"", refused.getMessage());
    }

    @Test
    void labelsAreThePropertysValues() {
        assertEquals("cuda", Provider.CUDA.label());
        assertEquals("reference", Provider.REFERENCE.label());
    }

    @Test
    void theDriverOfThisMachineIsDescribed() {
        Driver driver = Driver.probe();
        assertTrue(driver.description().contains("NVIDIA driver"), driver.description());
        assertEquals(driver.deviceCount() > 0, driver.isUsable());
    }

    @Test
    void theChoiceIsLoggedOnce() {
        String output = ForkedJvm.run(List.of(), Ask.class).expectExit(0).output();
        Driver driver = Driver.probe();
        String line = "provider " + (driver.isUsable() ? "cuda: " : "reference: ") + driver.description();
        assertEquals(1, output.lines().filter(each -> each.contains(line)).count(), output);
    }

    @Test
    void whatWasAskedForIsNotLogged() {
        String output = ForkedJvm.run(List.of("-Dchagres.provider=reference"), Ask.class)
                .expectExit(0)
                .output();
        assertEquals("provider=REFERENCE\nprovider=REFERENCE", output.strip());
    }

    @Test
    void aBadValueIsRefusedEachTimeAndNeverABrokenClass() {
        String output = ForkedJvm.run(List.of("-Dchagres.provider=tpu"), AskBadly.class)
                .expectExit(0)
                .output();
        assertEquals(
                2,
                output.lines()
                        .filter("-Dchagres.provider: expected auto, cuda or reference, got \"tpu\""::equals)
                        .count(),
                output);
    }
}
