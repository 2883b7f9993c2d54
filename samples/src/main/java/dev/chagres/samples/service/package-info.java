/** Embeddings of proteins over HTTP: a service on the JDK's server, and LangChain4j's {@code EmbeddingModel} that asks it. */
@NullMarked
package dev.chagres.samples.service;

import org.jspecify.annotations.NullMarked;
