package dev.chagres.samples.tour;

import org.junit.jupiter.api.Tag;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

@Tag("L0")
@Tag("L1")
class TourTest {
    @ParameterizedTest
    @ValueSource(
            strings = {
                "device",
                "layernorm",
                "product",
                "attention",
                "layer",
                "allreduce",
                "epilogue",
                "fusedattention",
                "ownlayer",
                "float8"
            })
    void everySampleVerifiesItsResult(String name) throws Exception {
        Tour.main(new String[] {name});
    }
}
