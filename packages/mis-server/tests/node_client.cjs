// What OpenAI's client for Node makes of a server's replies: one JSON object on standard output.
// node node_client.cjs BASE_URL MODEL; NODE_PATH finds the client.
const OpenAI = require("openai");

async function main(baseURL, model) {
  const client = new OpenAI({ baseURL, apiKey: "none", maxRetries: 0 });
  const messages = [{ role: "user", content: "Do cats purr?" }];
  const chat = { model, messages, max_tokens: 1, temperature: 0, logprobs: true, top_logprobs: 3 };
  const prompt = { model, prompt: "Cats purr.", max_tokens: 1, temperature: 0, echo: true, logprobs: 2 };
  const scored = { query: "Is it about cats? ", items: ["Yes", "No"], labels: ["a", "b"], apply_softmax: true };

  const models = [];
  for await (const each of client.models.list()) models.push(each.id);
  const streamed = [];
  for await (const chunk of await client.chat.completions.create({ ...chat, stream: true })) streamed.push(chunk);
  const longer = { ...chat, max_tokens: 12, seed: 3, temperature: 1 };
  const written = [];
  for await (const chunk of await client.chat.completions.create({ ...longer, stream: true })) written.push(chunk);
  const refused = await client.chat.completions.create({ ...chat, tools: [{ type: "function" }] }).catch((error) => error);

  console.log(
    JSON.stringify({
      models,
      chat: await client.chat.completions.create(chat),
      streamed,
      longer: await client.chat.completions.create(longer),
      written,
      completion: await client.completions.create(prompt),
      score: await client.post("/score", { body: scored }),
      refused: {
        name: refused.constructor.name,
        status: refused.status,
        code: refused.code,
        param: refused.param,
        requestID: refused.requestID,
      },
    }),
  );
}

main(process.argv[2], process.argv[3]);
