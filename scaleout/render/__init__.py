"""ChatRequest and CompletionRequest → GenerateRequest. Knows no engine, no output format, no wire JSON and no HTTP."""

from scaleout.render.renderer import ModelFacts, OutputFacts, Prompt, Renderer, RenderSettings
from scaleout.render.sampling import SamplingDefaults

__all__ = ["ModelFacts", "OutputFacts", "Prompt", "RenderSettings", "Renderer", "SamplingDefaults"]
