/** Models made of {@code dev.chagres}' layers, and the data that they train on. */
@SuppressWarnings(
        "requires-automatic") // The library of tokenizers has a name in its manifest alone, that of templates none but
// its file's.
module dev.chagres.models {
    requires transitive dev.chagres;
    requires com.fasterxml.jackson.core;
    requires static ai.djl.tokenizers;
    requires static dev.hardwood.core;
    requires static java.desktop; // what the library of templates calls java.beans
    requires static jinjava;

    exports dev.chagres.models.data;
    exports dev.chagres.models.decoder;
    exports dev.chagres.models.esm;
    exports dev.chagres.models.huggingface;
    exports dev.chagres.models.text;
    exports dev.chagres.models.transformer;
}
